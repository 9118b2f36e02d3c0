"""Rankings of documents, in the forms of Jina, Cohere and Hugging Face's TEI, as llama-server has them."""
