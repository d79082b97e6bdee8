-- Device logins (RFC 8628) that wait for their user. Both codes are stored as digests.
create table provider_device (
    id text primary key,
    user_code text not null unique,
    client text not null,
    scope text not null,
    resource text not null,
    expires_at double precision not null,
    poll_interval double precision not null,
    polled_at double precision not null,
    denied_at double precision,
    grant_id text references provider_grant (id) on delete cascade,
    signature text,
    grant_signature text,
    network text not null default '',
    wider_network text not null default ''
);

create index provider_device_network on provider_device (wider_network, network);
