-- The issuer that a configured client was first used with, for one URL of an upstream. Its secret is shown to no other.
create table vault_client_issuer (
    upstream text not null,
    url text not null,
    client text not null,
    issuer text not null,
    primary key (upstream, url, client)
);
