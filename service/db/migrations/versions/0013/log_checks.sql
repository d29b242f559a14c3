CREATE FUNCTION log_check_dated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.checked_at := now();
    RETURN NEW;
END
$$;

CREATE TRIGGER log_checks_dated BEFORE INSERT OR UPDATE ON log_checks FOR EACH ROW EXECUTE FUNCTION log_check_dated()
