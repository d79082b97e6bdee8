"""What tools promise: specifications, versions, typed clients, and calls that keep to a contract."""
