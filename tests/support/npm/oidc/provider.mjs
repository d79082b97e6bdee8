// A certified OpenID provider with its own development pages: whoever says a name is logged in as that name.
//   node provider.mjs FILE     with the settings in a JSON file; prints {"issuer": …} once it listens
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const said = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const server = createServer((request, response) => handle(request, response));
let handle;

server.listen(said.port ?? 0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: said.clients,
    scopes: ['openid', 'offline_access', 'profile', 'email', ...(said.scopes ?? [])],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name', 'preferred_username', 'groups'] },
    findAccount: (context, id) => ({
      accountId: id,
      claims: () => ({ sub: id, ...(said.accounts?.[id] ?? { preferred_username: id, email: `${id}@example.com` }) }),
    }),
    features: {
      devInteractions: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      registration: { enabled: said.registration ?? false },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => said.resource,
        useGrantedResource: () => true,
        getResourceServerInfo: (context, resource) => ({
          scope: (said.scopes ?? []).join(' '),
          audience: resource,
          accessTokenFormat: said.format ?? 'jwt',
          accessTokenTTL: said.lifetime ?? 300,
          ...(said.format === 'opaque' ? {} : { jwt: { sign: { alg: 'RS256' } } }),
        }),
      },
    },
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (context, client) => client.grantTypeAllowed('refresh_token'),
    cookies: { keys: ['for tests'] },
    ttl: { AccessToken: 300, Grant: 3600, IdToken: 300, Interaction: 600, RefreshToken: 3600, Session: 3600 },
  });
  handle = provider.callback();
  console.log(JSON.stringify({ issuer }));
});
