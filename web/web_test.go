package web_test

import (
	"compress/gzip"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"mariposa/web"
)

const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

// serve sends a request to the page, in front of an API that answers 418 to everything.
func serve(t *testing.T, method, path string, headers ...string) *http.Response {
	t.Helper()
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	web.New(api).ServeHTTP(w, r)
	return w.Result()
}

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestBrowsersGetThePageAndProgramsTheAPI(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path string
		headers      []string
		page         bool
	}{
		{"GET", "/", []string{"Accept", browser}, true},
		{"HEAD", "/", []string{"Accept", browser}, true},
		{"GET", "/projects/acme/shop", []string{"Accept", browser}, true},
		{"GET", "/nodes", []string{"Accept", browser}, true},
		{"GET", "/", []string{"Accept", "application/json"}, false},
		{"GET", "/", nil, false},
		{"GET", "/", []string{"Accept", browser, "Authorization", "Bearer x"}, false},
		{"POST", "/", []string{"Accept", browser}, false},
		{"GET", "/projectsandmore", []string{"Accept", browser}, false},
		{"GET", "/v1/projects", []string{"Accept", browser}, false},
		{"GET", "/docs", []string{"Accept", browser}, false},
		{"GET", "/assets/app.js", []string{"Accept", browser}, false}, // without its hash
		{"GET", "/assets/../dist/app.js", nil, false},
	} {
		if r := serve(t, c.method, c.path, c.headers...); (r.StatusCode == http.StatusOK) != c.page {
			t.Errorf("%+v answers %d", c, r.StatusCode)
		}
	}
}

// Nothing comes from elsewhere, and no text can become HTML or code.
func TestThePageLoadsOnlyItsOwnFiles(t *testing.T) {
	t.Parallel()
	r := serve(t, "GET", "/", "Accept", browser)
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; " +
			"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY", "Content-Type": "text/html; charset=utf-8",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	html := read(t, r)
	files := regexp.MustCompile(`(?:src|href)="(/assets/[^"]+)"`).FindAllStringSubmatch(html, -1)
	if len(files) != 3 || strings.Contains(html, "://") || strings.Contains(html, "style=") || strings.Contains(html, "onclick") {
		t.Errorf("the page is %s", html)
	}
	script := ""
	for _, f := range files {
		if plain := checkFile(t, f[1]); strings.HasSuffix(f[1], ".js") {
			script = plain
		}
	}
	// Parts that are loaded later.
	later := regexp.MustCompile(`/assets/[\w.-]+`).FindAllString(script, -1)
	if len(later) != 4 {
		t.Errorf("the script refers to %s", later)
	}
	for _, path := range later {
		checkFile(t, path)
	}
}

var outside = regexp.MustCompile(`https?://|//# source|@import|url\(|innerHTML|eval\(`)

// checkFile checks how a file of the page is served and that it contains nothing of other servers, and returns it.
func checkFile(t *testing.T, path string) string {
	t.Helper()
	r := serve(t, "GET", path, "Accept-Encoding", "gzip")
	if r.StatusCode != http.StatusOK || !strings.Contains(r.Header.Get("Cache-Control"), "immutable") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s answers %d %v", path, r.StatusCode, r.Header)
	}
	plain := read(t, serve(t, "GET", path))
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := io.ReadAll(z); err != nil || string(same) != plain {
			t.Errorf("%s is not the same compressed (%v)", path, err)
		}
	}
	// The namespace of SVG is a name, not an address that is loaded; data is no address; and style sheets have comments.
	rest := regexp.MustCompile(`(?m)^ \* .*`).ReplaceAllString(strings.NewReplacer("http://www.w3.org/2000/svg", "", "url('data:", "").Replace(plain), "")
	if at := outside.FindStringIndex(rest); at != nil && !strings.HasSuffix(path, ".txt") {
		t.Errorf("%s refers to something outside, or makes code of text: %s", path, rest[max(0, at[0]-40):min(len(rest), at[1]+40)])
	}
	return plain
}

// Text has at least the contrast of WCAG AA (4.5 to 1), and signs that of graphical objects (3 to 1), in both schemes.
func TestColorsHaveEnoughContrast(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("src/app.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, ok := strings.Cut(string(css), "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("there is no dark scheme")
	}
	dark = dark[:strings.Index(dark, "}\n}")]
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colors := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6})`).FindAllStringSubmatch(text, -1) {
			colors[m[1]] = luminance(t, m[2])
		}
		if len(colors) != 17 {
			t.Errorf("the %s scheme has %d colors", scheme, len(colors))
		}
		check := func(on, name string, least float64) {
			t.Helper()
			a, b := colors[on], colors[name]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < least {
				t.Errorf("%s on %s has a contrast of %.2f in the %s scheme; at least %.1f is required", name, on, ratio, scheme, least)
			}
		}
		for _, on := range []string{"paper", "panel"} {
			for _, name := range []string{"ink", "quiet", "accent", "fail", "code-key", "code-text", "code-mark"} { // errors are text
				check(on, name, 4.5)
			}
			for _, name := range []string{"ok", "ill", "gray", "held", "cold", "field"} {
				check(on, name, 3)
			}
		}
		check("accent", "on-accent", 4.5)
	}
}

// luminance is the relative luminance of a color, as WCAG defines it.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(hex[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	channel := func(v uint64) float64 {
		c := float64(v&255) / 255
		if c <= 0.03928 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*channel(n>>16) + 0.7152*channel(n>>8) + 0.0722*channel(n)
}
