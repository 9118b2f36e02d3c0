"""What an answer must look like: schemas, grammars and calls of tools, decided token by token."""
