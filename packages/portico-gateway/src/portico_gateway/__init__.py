"""Who may do what: rules, limits and the audit, on any Server."""
