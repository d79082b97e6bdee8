-- How many tasks somebody has open is counted with each new one.
create index portico_job_open on portico_job (server, owner) where status in ('queued', 'running', 'waiting');
