"""Embedding and reranking models behind the server: batches across requests, and the APIs of several vendors."""
