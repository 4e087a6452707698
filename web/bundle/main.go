// Command bundle translates the page's TypeScript and style sheet to the files that the binary
// contains. Run it with `go generate ./web` after a change in web/src. It needs no Node and no
// network: esbuild is a Go package, and the npm packages are in web/packages.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

// libraries are parts of the page that are loaded when they are needed first. The page imports
// them by their paths.
var libraries = []struct {
	entry string
	// isLax says that its packages do not keep to the content security policy by themselves. They
	// get the document of strict.ts.
	isLax bool
}{{entry: "codemirror.ts"}, {entry: "uplot.ts"}, {entry: "xterm.ts", isLax: true}}

func main() {
	files, err := bundle(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join("dist", name), body, 0o644); err != nil { //nolint:gosec // sources are public
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// bundle returns the files of the page by name, from the sources and packages in a directory.
func bundle(dir string) (map[string][]byte, error) {
	src, packages := filepath.Join(dir, "src"), filepath.Join(dir, "packages")
	files := map[string][]byte{}
	err := build(files, packages, api.BuildOptions{EntryPoints: []string{filepath.Join(src, "app.ts"), filepath.Join(src, "app.css")}, Format: api.FormatIIFE})
	for _, l := range libraries {
		o := api.BuildOptions{EntryPoints: []string{filepath.Join(src, l.entry)}, Format: api.FormatESModule, Loader: map[string]api.Loader{".css": api.LoaderText}} // they adopt their style sheets
		if l.isLax {
			o.Define, o.Inject = map[string]string{"document": "strictDocument"}, []string{filepath.Join(src, "strict.ts")}
		}
		err = errors.Join(err, build(files, packages, o))
	}
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"index.html", "icon.svg"} {
		body, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return nil, err
		}
		files[name] = body
	}
	files["licenses.txt"], err = licenses(packages)
	return files, err
}

// build translates entry points and what they import, and adds the results.
func build(files map[string][]byte, packages string, o api.BuildOptions) error {
	packages, err := filepath.Abs(packages)
	if err != nil {
		return err
	}
	o.Outdir, o.Bundle, o.NodePaths, o.External = "out", true, []string{packages}, []string{"/assets/*"}
	o.MinifyWhitespace, o.MinifyIdentifiers, o.MinifySyntax = true, true, true
	o.Target, o.Charset, o.LegalComments, o.LogLevel = api.ES2022, api.CharsetUTF8, api.LegalCommentsNone, api.LogLevelSilent
	built := api.Build(o)
	var faults []error
	for _, e := range built.Errors {
		at := ""
		if e.Location != nil {
			at = fmt.Sprintf("%s:%d: ", e.Location.File, e.Location.Line)
		}
		faults = append(faults, errors.New(at+e.Text))
	}
	for _, f := range built.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	return errors.Join(faults...)
}

// licenses returns the licenses of the npm packages, which have to come with their code.
func licenses(packages string) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(packages, "packages.json"))
	if err != nil {
		return nil, err
	}
	var list []struct{ Name, Version string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("The web page contains these packages.\n")
	for _, p := range list {
		text, err := os.ReadFile(filepath.Join(packages, p.Name, "LICENSE"))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "\n%s %s\n\n%s\n", p.Name, p.Version, bytes.TrimSpace(text))
	}
	return b.Bytes(), nil
}
