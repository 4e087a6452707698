package api

import "testing"

// After a sign-in at a provider, people return to a page of this server only.
func TestASignInReturnsToThisServerOnly(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"": "/", "/": "/", "/projects/acme/shop": "/projects/acme/shop", "/a%20b": "/a%20b", "/x?y=z#w": "/x",
		"//evil.example": "/", "https://evil.example/": "/", `/\evil.example`: "/", `\\evil.example`: "/", "/%2f/evil.example": "/", "evil": "/", "javascript:alert(1)": "/", "/\x00": "/",
	} {
		if got := ownPath(path); got != want {
			t.Errorf("%q leads to %q, not %q", path, got, want)
		}
	}
}
