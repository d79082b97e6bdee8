-- How much of each monthly budget is spent or reserved, by all processes together. A month is a number such as 202611.
create table portico_quota_month (
    key text not null,
    month bigint not null,
    spent double precision not null,
    primary key (key, month)
);
