"""Where model bytes come from: sources in S3 and on disk, inspection at registration, verified download."""
