"""The process shell that relay, consumer and admin stand on; never imported by apps."""
