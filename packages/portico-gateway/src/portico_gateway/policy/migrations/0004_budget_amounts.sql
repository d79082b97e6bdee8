-- Budgets that each principal has, to report what is left of them: portico_quota_month has hashes only.
create table portico_quota_budget (
    server text not null,
    name text not null,
    unit text not null,
    amount double precision not null,
    primary key (server, name, unit)
);
