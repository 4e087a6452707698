package docker

import "testing"

func TestRepositoriesAreNamedAsTheEngineNamesThem(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"nginx": "nginx", "nginx:1.25": "nginx", "library/nginx": "nginx", "docker.io/library/nginx:1": "nginx", "index.docker.io/acme/web": "acme/web",
		"acme/web@sha256:ab": "acme/web", "registry.example.com:5000/shop/web:1@sha256:ab": "registry.example.com:5000/shop/web",
		"registry.example.com:5000/library/web": "registry.example.com:5000/library/web", "library/a/b": "library/a/b",
	} {
		if got := repositoryOf(image); got != want {
			t.Errorf("%s is of %s, want %s", image, got, want)
		}
	}
}
