"""What one client's input does to the others: delays beside bodies and connections that are made to hurt."""
