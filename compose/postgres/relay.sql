-- What the relay needs, and no more: docs/how-to/roles.md. The service set-up runs it after the migrations.
GRANT USAGE ON SCHEMA outbox TO shop_relay;
GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO shop_relay;
GRANT INSERT ON outbox.event TO shop_relay;
GRANT UPDATE, DELETE ON outbox.scheduled, outbox.ordering, outbox.key TO shop_relay;
GRANT UPDATE ON outbox.consumer_group TO shop_relay;
GRANT INSERT, UPDATE, DELETE ON outbox.relay, outbox.stream, outbox.deferred, outbox.lane TO shop_relay;
GRANT INSERT, UPDATE ON outbox.bucket, outbox.replay TO shop_relay;
GRANT TRUNCATE ON outbox.bucket, outbox.stream TO shop_relay;
GRANT USAGE ON SEQUENCE outbox.event_seq, outbox.token TO shop_relay;
GRANT EXECUTE ON FUNCTION outbox.truncate_slot(integer, interval) TO shop_relay;
GRANT EXECUTE ON FUNCTION outbox.rewrite_bucket(), outbox.rewrite_stream() TO shop_relay;
