create table portico_run (
    id text primary key,
    owner text not null,
    -- Of the script and its data: who sends the same again goes on where a process was killed.
    digest text not null,
    -- running, paused, cancelled
    status text not null,
    seed text not null,
    begun_at double precision not null,
    updated_at double precision not null,
    -- The process that runs it, and until when that has said to be alive.
    holder text not null,
    held_until double precision not null,
    -- The tools that a person has agreed to, as a list in JSON.
    approved text not null
);

create index portico_run_owner on portico_run (owner, digest, status);

create table portico_run_call (
    run_id text not null references portico_run (id) on delete cascade,
    n bigint not null,
    tool text not null,
    -- Of the arguments.
    digest text not null,
    -- In which place the script learnt of it: null for what was begun and has no outcome.
    place bigint,
    at double precision not null,
    outcome text not null,
    primary key (run_id, n)
);

create table portico_run_output (
    id text primary key,
    owner text not null,
    made_at double precision not null,
    mime_type text not null,
    text text not null
);

create table portico_saved_script (
    owner text not null,
    name text not null,
    description text not null,
    code text not null,
    -- The tools that it uses and what they were when it was saved, as an object in JSON.
    tools text not null,
    saved_at double precision not null,
    primary key (owner, name)
);
