-- For people who look at all of them, the newest first.
create index portico_job_recent on portico_job (created_at desc, id);
