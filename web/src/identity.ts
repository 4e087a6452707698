/** How the person at the page can prove who they are: by a password, or at an identity provider. */
export const identity = { hasPassword: false, provider: "", again: () => location.assign(`/v1/oidc/sign-in?again=true&return=${encodeURIComponent(location.pathname)}`) };
