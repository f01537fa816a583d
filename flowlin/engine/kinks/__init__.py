"""How runs treat kinks: policies, sides, sliding, the exact walk."""
