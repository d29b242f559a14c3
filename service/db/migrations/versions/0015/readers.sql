DROP TABLE reader_leases;

DROP FUNCTION reader_told();

DROP FUNCTION reader_lease_renew(uuid, text, text);

DROP FUNCTION reader_lease_end(uuid);

DROP TRIGGER pointers_told ON pointers;

DROP FUNCTION pointer_told();

