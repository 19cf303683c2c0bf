"""A pre-imported process that forks engines: it has seen no model and no tenant, and never touches a device."""
