-- What a process of the api may only ask for: functions with the owner's rights.
SELECT 1
