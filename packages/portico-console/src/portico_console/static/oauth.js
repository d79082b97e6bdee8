// Login at the server's own authorization server ([auth.proxy]): authorization code with PKCE (RFC 7636), as for any
// public client. Tokens are stored for this tab only.

import { LOGIN } from "./mcp.js";

const keep = (login) => sessionStorage.setItem(LOGIN, JSON.stringify(login));
const kept = () => JSON.parse(sessionStorage.getItem(LOGIN) ?? "{}");

/** The authorization server of this server; none if it has another origin, which this page cannot reach. */
export async function findLogin() {
  const { resource, authorization_servers: [issuer] = [] } = await read(fetch("/.well-known/oauth-protected-resource"));
  const { origin, pathname } = new URL(issuer);
  if (origin !== location.origin) return undefined;
  const said = await read(fetch(`/.well-known/oauth-authorization-server${pathname.replace(/\/$/, "")}`));
  return said.registration_endpoint ? { ...said, issuer, resource } : undefined;
}

/** Redirect to the login. */
export async function goThere({ issuer, resource, registration_endpoint, authorization_endpoint, token_endpoint }, scope) {
  const redirect = location.origin + location.pathname;
  const about = { client_name: "Portico console", redirect_uris: [redirect], grant_types: ["authorization_code", "refresh_token"], response_types: ["code"], token_endpoint_auth_method: "none" };
  const { client_id } = await read(fetch(registration_endpoint, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(about) }));
  const [state, verifier] = [random(), random()];
  keep({ state, verifier, redirect, client_id, issuer, resource, at: token_endpoint });
  const challenge = text(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
  location.assign(`${authorization_endpoint}?${new URLSearchParams({ response_type: "code", client_id, redirect_uri: redirect, scope, resource, state, code_challenge: challenge, code_challenge_method: "S256" })}`);
}

/** Exchange the code in the URL for a token. */
export function comeBack(query) {
  const { state, verifier, redirect, issuer } = kept();
  if (!state || query.get("state") !== state || query.get("iss") !== issuer) throw new Error("Login failed: state or issuer mismatch.");
  if (!query.has("code")) throw new Error("Login was cancelled.");
  return redeem({ grant_type: "authorization_code", code: query.get("code"), redirect_uri: redirect, code_verifier: verifier });
}

/** Renew an expired token. */
export const renew = () => redeem({ grant_type: "refresh_token", refresh_token: kept().refresh });

async function redeem(form) {
  const { client_id, issuer, resource, at } = kept();
  // A refresh token is valid once, whatever the result.
  sessionStorage.removeItem(LOGIN);
  const said = await read(fetch(at, { method: "POST", body: new URLSearchParams({ ...form, client_id, resource }) }));
  keep({ client_id, issuer, resource, at, refresh: said.refresh_token });
  return said.access_token;
}

async function read(asking) {
  const answer = await asking;
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error_description ?? said.error ?? `The authorization server responded with HTTP ${answer.status}.`);
  return said;
}

const random = () => text(crypto.getRandomValues(new Uint8Array(32)));
const text = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
