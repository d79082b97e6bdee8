create table portico_job (
    id text primary key,
    server text not null,
    tool text not null,
    arguments text not null,
    owner text not null,
    caller text not null,
    status text not null check (status in ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    priority bigint not null,
    created_at bigint not null,
    updated_at bigint not null,
    run_at bigint not null,
    ttl bigint,
    expires_at bigint,
    attempts bigint not null,
    deaths bigint not null,
    runs bigint not null,
    worker text,
    lease bigint,
    message text,
    progress double precision,
    total double precision,
    questions text not null,
    answers text not null,
    refused boolean not null,
    outcome text
);

-- Only what is waiting for a worker, and only what has one: finished jobs do not make these longer.
create index portico_job_queued on portico_job (server, priority desc, run_at, id, tool) where status = 'queued';
create index portico_job_queued_of_tool on portico_job (server, tool, priority desc, run_at, id)
    where status = 'queued';
create index portico_job_later on portico_job (server, run_at, tool) where status = 'queued';
create index portico_job_running on portico_job (server, tool) where status = 'running';
create index portico_job_held on portico_job (server, worker, lease) where status in ('running', 'waiting');
create index portico_job_owned on portico_job (server, owner, created_at, id);
create index portico_job_expiring on portico_job (expires_at, status) where expires_at is not null;

create table portico_job_step (
    job text not null references portico_job (id) on delete cascade,
    name text not null,
    value text not null,
    primary key (job, name)
);
