"""Where within a step a watched component changes sign: brackets of all its roots."""
