"""Events: what is watched, and how its crossings are found."""
