// Command fetch puts the npm packages that the page uses into web/packages, in the versions that
// packages.json names. Run it after a change of that file: `go run ./web/fetch`. It needs the
// network, and whoever builds does not: the files are committed. It needs no Node.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	registry   = "https://registry.npmjs.org"
	maxPackage = 32 << 20
	sums       = "SHA256SUMS"
	list       = "packages.json"
)

// pack is an npm package that is bundled.
type pack struct {
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Integrity string   `json:"integrity"` // of the archive in the registry
	Files     []string `json:"files"`     // in addition to package.json and LICENSE
}

func main() {
	if err := update(filepath.Join("web", "packages")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// update fetches the packages that the list in a directory names, and removes all others.
func update(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, list))
	if err != nil {
		return err
	}
	var packs []pack
	if err := json.Unmarshal(raw, &packs); err != nil {
		return fmt.Errorf("%s: %w", list, err)
	}
	files := map[string][]byte{list: raw}
	client := &http.Client{Timeout: time.Minute}
	for _, p := range packs {
		archive, err := download(client, p)
		if err == nil {
			err = extract(archive, p, files)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	files[sums] = checksums(files)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, body := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil { //nolint:gosec // sources are public
			return err
		}
		if err := os.WriteFile(at, body, 0o644); err != nil { //nolint:gosec // sources are public
			return err
		}
	}
	return nil
}

// download returns the archive of a package, if it is the one that the list names.
func download(client *http.Client, p pack) ([]byte, error) {
	r, err := client.Get(registry + "/" + p.Name + "/-/" + path.Base(p.Name) + "-" + p.Version + ".tgz") //nolint:noctx // the client has a time limit
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the registry answers %s", r.Status)
	}
	archive, err := io.ReadAll(io.LimitReader(r.Body, maxPackage))
	if err != nil {
		return nil, err
	}
	sum := sha512.Sum512(archive)
	if is := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); is != p.Integrity {
		return nil, fmt.Errorf("the integrity of version %s is %s, and %s says %s", p.Version, is, list, p.Integrity)
	}
	return archive, nil
}

// extract adds the files of a package that are needed, by their paths in the directory.
func extract(archive []byte, p pack, files map[string][]byte) error {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	missing := append([]string{"package.json", "LICENSE"}, p.Files...)
	for t := tar.NewReader(z); ; {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(header.Name, "/") // the first directory has any name
		n := slices.Index(missing, name)
		if n < 0 || header.Typeflag != tar.TypeReg {
			continue
		}
		body, err := io.ReadAll(io.LimitReader(t, maxPackage))
		if err != nil {
			return err
		}
		files[path.Join(p.Name, name)] = body
		missing = slices.Delete(missing, n, n+1)
	}
	if len(missing) > 0 {
		return fmt.Errorf("the package has no %s", strings.Join(missing, ", "))
	}
	return nil
}

// checksums lists the files as sha256sum does.
func checksums(files map[string][]byte) []byte {
	var lines []string
	for name, body := range files {
		if name != sums {
			lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(body), name))
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return []byte(strings.Join(lines, ""))
}
