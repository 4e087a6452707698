// Package web serves the web page: a small program for the browser that shows projects, their
// instances and tasks, and follows their changes.
//
// The page has no access of its own. It sends requests to the public API, with the cookie of a
// session, so it can do nothing that a script cannot. The package owns the files of the page
// and the headers that protect it. It does not know projects, users or sessions.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:generate go run ./bundle

//go:embed dist
var dist embed.FS

// policy lets the page load its own files and talk to its own server, and nothing else. Scripts
// cannot turn text into HTML or code.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Paths of the page. The program in the browser decides what to show there.
var pages = []string{"/projects", "/queue", "/nodes", "/events", "/admin", "/account"}

// The files of the page. A file refers only to those before it: their paths contain hashes.
var files = []string{"icon.svg", "licenses.txt", "codemirror.js", "uplot.js", "xterm.js", "app.css", "app.js"}

// asset is one file of the page.
type asset struct {
	kind   string // media type
	body   []byte
	packed func() []byte // the body, compressed; nil if that saves nothing
}

// page serves the files of the page, and passes all other requests on.
type page struct {
	next   http.Handler
	index  asset
	assets map[string]asset // by path; the path contains the hash of the content
}

// New returns a handler that serves the page to browsers and passes all other requests on to
// the API.
func New(api http.Handler) http.Handler {
	p := prepared()
	p.next = api
	return &p
}

// prepared returns the page without an API. All servers of a process share its files.
var prepared = sync.OnceValue(func() page {
	p := page{assets: map[string]asset{}}
	var names []string
	for _, name := range files {
		a := load(name, names...)
		sum := sha256.Sum256(a.body)
		ext := path.Ext(name)
		hashed := "/assets/" + strings.TrimSuffix(name, ext) + "-" + hex.EncodeToString(sum[:6]) + ext
		p.assets[hashed] = a
		names = append(names, "/assets/"+name, hashed)
	}
	p.index = load("index.html", names...)
	return p
})

// load reads an embedded file, and replaces the paths of others in it. All of them exist: they
// are compiled in.
func load(name string, names ...string) asset {
	body, err := fs.ReadFile(dist, "dist/"+name)
	if err != nil {
		panic(err)
	}
	return pack(mime.TypeByExtension(path.Ext(name)), []byte(strings.NewReplacer(names...).Replace(string(body))))
}

func pack(kind string, body []byte) asset {
	if kind == "" {
		kind = "text/javascript; charset=utf-8"
	}
	// Many servers never show the page, and compressing takes a moment.
	return asset{kind: kind, body: body, packed: sync.OnceValue(func() []byte {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
		_, _ = z.Write(body)                                  // a buffer accepts everything
		_ = z.Close()
		if b.Len() >= len(body) {
			return nil
		}
		return b.Bytes()
	})}
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		p.next.ServeHTTP(w, r)
		return
	}
	if a, ok := p.assets[r.URL.Path]; ok {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // another content has another path
		a.serve(w, r)
		return
	}
	if !isPage(r) {
		p.next.ServeHTTP(w, r)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	p.index.serve(w, r)
}

// isPage reports whether a browser opens a page. Programs get an answer of the API at the same
// paths.
func isPage(r *http.Request) bool {
	if r.Header.Get("Authorization") != "" || !strings.Contains(strings.ToLower(r.Header.Get("Accept")), "text/html") {
		return false
	}
	if r.URL.Path == "/" {
		return true
	}
	for _, one := range pages {
		if r.URL.Path == one || strings.HasPrefix(r.URL.Path, one+"/") {
			return true
		}
	}
	return false
}

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Vary", "Accept-Encoding")
	body := a.body
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		if packed := a.packed(); packed != nil {
			h.Set("Content-Encoding", "gzip")
			body = packed
		}
	}
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(body) // the client may be gone
}
