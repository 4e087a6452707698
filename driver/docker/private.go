package docker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver/statefile"
)

// An engine keeps the images that it has fetched for everyone. An image that was fetched with a
// login must not be run by those who cannot fetch it themselves, so the driver remembers which
// repositories logins were used for, and which logins have had access to them.

// privateFile is the record of private repositories.
const privateFile = "private-repositories.json"

type privateRepositories struct {
	path string

	mu    sync.Mutex
	known privateRecord
}

type privateRecord struct {
	Salt         string              `json:"salt"`
	Repositories map[string][]string `json:"repositories"` // hashes of the logins that have had access
}

func openPrivate(dir string) (*privateRepositories, error) {
	p := &privateRepositories{path: filepath.Join(dir, privateFile)}
	if err := statefile.IgnoreMissing(statefile.Read(p.path, &p.known)); err != nil {
		return nil, fmt.Errorf("cannot read the record of private images: %w", err)
	}
	if p.known.Salt == "" {
		p.known = privateRecord{Salt: rand.Text(), Repositories: map[string][]string{}}
	}
	return p, nil
}

// hash identifies a login without revealing it; nil is everybody.
func (p *privateRepositories) hash(login *mariposa.Login) string {
	if login == nil {
		return "everybody"
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{p.known.Salt, login.Registry, login.Username, login.Password}, "\x00")))
	return hex.EncodeToString(sum[:])
}

// mark records that a login is about to be used for a repository: until it is known who has
// access, nobody has.
func (p *privateRepositories) mark(repository string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.known.Repositories[repository]; known {
		return nil
	}
	p.known.Repositories[repository] = []string{}
	return statefile.Write(p.path, p.known)
}

// allow records that a login has had access to a repository.
func (p *privateRepositories) allow(repository string, login *mariposa.Login) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, known := p.known.Repositories[repository]
	if hash := p.hash(login); known && !slices.Contains(all, hash) {
		const most = 1000 // logins change; the oldest are checked again
		p.known.Repositories[repository] = append(all[max(0, len(all)-most):], hash)
		return statefile.Write(p.path, p.known)
	}
	return nil
}

// isOpen reports whether a repository is open to a login.
func (p *privateRepositories) isOpen(repository string, login *mariposa.Login) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, known := p.known.Repositories[repository]
	return !known || slices.Contains(all, p.hash(login))
}

// repositoryOf returns the repository in the name of an image, as the engine writes it.
func repositoryOf(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name = name[:at]
	}
	for _, prefix := range []string{"index.docker.io/", "docker.io/"} {
		if rest, found := strings.CutPrefix(name, prefix); found {
			name = rest
		}
	}
	if rest, found := strings.CutPrefix(name, "library/"); found && !strings.Contains(rest, "/") {
		name = rest
	}
	return name
}

// checkAccess refuses an image that the engine has, if it comes only from repositories that
// other logins were used for, and this one has no access to any of them. What the image was
// called does not count: it has many names, and its id has many short forms.
func (d *Driver) checkAccess(ctx context.Context, names []string, login *mariposa.Login) error {
	for _, name := range names {
		if d.private.isOpen(repositoryOf(name), login) {
			return nil
		}
	}
	var refused error
	for _, name := range names {
		if d.isPodman.Load() && !strings.Contains(name, "@") {
			continue // asking would move the tag on this node
		}
		its := login
		if its != nil && mariposa.RegistryOf(name) != its.Registry {
			its = nil
		}
		err := d.askRegistry(ctx, name, its)
		if err == nil {
			return d.private.allow(repositoryOf(name), its)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		refused = pullError(name, err)
	}
	if refused != nil {
		return fmt.Errorf("the image is on the node, but only for organizations with access to it: %w", refused)
	}
	return nil // it was built here
}

// askRegistry asks a registry for an image that the engine has. Podman can only fetch it, which
// fetches nothing but its manifest.
func (d *Driver) askRegistry(ctx context.Context, name string, login *mariposa.Login) error {
	if !d.isPodman.Load() {
		_, err := d.api().DistributionInspect(ctx, name, client.DistributionInspectOptions{EncodedRegistryAuth: encodeLogin(login)})
		return err
	}
	r, err := d.api().ImagePull(ctx, name, client.ImagePullOptions{RegistryAuth: encodeLogin(login)})
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}
