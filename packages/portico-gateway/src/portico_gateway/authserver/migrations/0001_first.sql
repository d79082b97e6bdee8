-- Secrets that only have to be recognised are digests; what has to be read again is sealed.

create table provider_key (
    id text primary key,
    private text not null,
    created_at double precision not null
);

create table provider_client (
    id text primary key,
    kind text not null,
    body text not null,
    created_at double precision not null,
    -- A document is fetched again after this; a registration that was never used is forgotten.
    expires_at double precision
);

-- A browser on its way: from the consent page to the login and back.
create table provider_flow (
    id text primary key,
    browser text not null,
    body text not null,
    expires_at double precision not null
);

create table provider_grant (
    id text primary key,
    client text not null,
    subject text not null,
    identity text not null,
    scope text not null,
    resource text not null,
    created_at double precision not null,
    expires_at double precision not null,
    revoked_at double precision
);

create table provider_code (
    id text primary key,
    grant_id text not null references provider_grant (id) on delete cascade,
    redirect_uri text not null,
    challenge text not null,
    expires_at double precision not null,
    used_at double precision
);

create table provider_refresh (
    id text primary key,
    grant_id text not null references provider_grant (id) on delete cascade,
    expires_at double precision not null,
    used_at double precision
);

create index provider_code_grant on provider_code (grant_id);
create index provider_refresh_grant on provider_refresh (grant_id);
create index provider_grant_subject on provider_grant (subject);
