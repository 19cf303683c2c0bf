"""The bus: the only code that speaks NATS; subjects, typed tables, mirrors, events, work queues, embedded server."""
