// An OpenID Connect provider for tests: `oidc-provider` with its pages for development, which accept every user and password.
// Arguments: the library's index.js, the port, and the groups of each user as JSON. The clients are `sluice`, for logins, and `ci`, a program.

const [library, port, groups] = process.argv.slice(2);
const { default: Provider } = await import(library);
const members = JSON.parse(groups);
const issuer = `http://127.0.0.1:${port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "sluice",
      token_endpoint_auth_method: "none",
      redirect_uris: ["http://c/ui/login/corp/callback"],
      grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
      response_types: ["code"],
    },
    {
      client_id: "ci",
      client_secret: "a-secret-of-a-program",
      redirect_uris: [],
      grant_types: ["client_credentials"],
      response_types: [],
    },
  ],
  claims: { openid: ["sub", "groups"] },
  conformIdTokenClaims: false,
  cookies: { keys: ["a key of a test"] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: members[id] ?? [] }) }),
  features: {
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, audience) => ({
        audience,
        scope: "api",
        accessTokenFormat: "jwt",
        accessTokenTTL: 300,
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
  issueRefreshToken: async () => true,
  pkce: { required: () => true },
  ttl: { AccessToken: 300, IdToken: 300, Interaction: 600, Session: 600, Grant: 600, DeviceCode: 600, RefreshToken: 600 },
});
provider.listen(Number(port), "127.0.0.1");
