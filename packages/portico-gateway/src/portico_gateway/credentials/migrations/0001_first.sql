-- What a principal may show to an upstream. The tokens are sealed, and open for this row alone.
create table vault_token (
    principal text not null,
    upstream text not null,
    issuer text not null,
    body text not null,
    updated_at double precision not null,
    -- Until when one process renews it, and the others wait for that.
    renewing_until double precision,
    primary key (principal, upstream, issuer)
);

-- Who we are to an issuer that we have registered with.
create table vault_client (
    upstream text not null,
    issuer text not null,
    body text not null,
    primary key (upstream, issuer)
);
