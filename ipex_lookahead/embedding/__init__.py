"""Embedding models and rerankers: texts to vectors, and scores of documents for a query."""
