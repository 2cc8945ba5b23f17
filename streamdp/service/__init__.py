"""The HTTP service: it learns from requests, and serves the committed models of any jobs."""
