create table portico_spent_state (
    id text primary key,
    expires_at double precision not null
);

create index portico_spent_state_expired on portico_spent_state (expires_at);
