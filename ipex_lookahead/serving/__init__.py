"""The server: one API a file, over ``generation/service.py``. Nothing outside of this folder imports ``fastapi``."""
