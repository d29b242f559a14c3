-- The span of the call that made the request, in W3C's format (https://www.w3.org/TR/trace-context): version, trace, span,
-- flags. Null without traces, and for requests that are queued again.

ALTER TABLE outbox ADD COLUMN traceparent text
    CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$');
