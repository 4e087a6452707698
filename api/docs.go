package api

import (
	"bytes"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

// docsHandler serves the OpenAPI document as a self-contained page. It loads no scripts and
// nothing from other servers, so it works behind any firewall.
func (s *server) docsHandler() http.Handler {
	page := sync.OnceValues(func() ([]byte, error) {
		var b bytes.Buffer
		err := docsPage.Execute(&b, sections(s.huma.OpenAPI()))
		return b.Bytes(), err
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := page()
		if err != nil {
			s.unexpectedError(r.Context(), err).write(w)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		_, _ = w.Write(body) // the client may be gone
	})
}

// section is the content under one heading of the page.
type section struct {
	Name, About string
	Operations  []*huma.Operation
}

func sections(doc *huma.OpenAPI) []section {
	byTag := map[string][]*huma.Operation{}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		p := doc.Paths[path]
		for _, op := range []*huma.Operation{p.Get, p.Post, p.Put, p.Delete} {
			if op != nil {
				byTag[op.Tags[0]] = append(byTag[op.Tags[0]], op)
			}
		}
	}
	var all []section
	for _, tag := range doc.Tags {
		all = append(all, section{Name: tag.Name, About: tag.Description, Operations: byTag[tag.Name]})
	}
	return all
}

// schemaName returns the name of the document in a response or request.
func schemaName(content map[string]*huma.MediaType) string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(content)) {
		name := kind
		if m := content[kind]; m != nil && m.Schema != nil && m.Schema.Ref != "" {
			name = m.Schema.Ref[strings.LastIndexByte(m.Schema.Ref, '/')+1:]
		}
		names = append(names, name)
	}
	return strings.Join(names, " or ")
}

var docsPage = template.Must(template.New("docs").Funcs(template.FuncMap{
	"carries": schemaName,
	"request": func(op *huma.Operation) string {
		if op.RequestBody == nil {
			return ""
		}
		return schemaName(op.RequestBody.Content)
	},
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Mariposa API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
code{font:14px ui-monospace,monospace}h2{margin-top:2.5rem;border-bottom:1px solid #ccc}
article{margin:1.2rem 0}article p,article ul{margin:.2rem 0 .2rem 1rem}b.m{display:inline-block;min-width:4.5rem}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}h2{border-color:#444}a{color:#8bf}}
</style></head><body>
<h1>Mariposa API</h1>
<p>The complete specification, with every field: <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1). Errors look like
<code>{"code": "Conflict", "message": "…", "errors": []}</code>.</p>
{{range .}}<h2>{{.Name}}</h2><p>{{.About}}</p>
{{range .Operations}}<article id="{{.OperationID}}"><code><b class="m">{{.Method}}</b> {{.Path}}</code>
<p>{{.Summary}}{{with .Description}}<br>{{.}}{{end}}</p>
{{with .Parameters}}<ul>{{range .}}{{if ne .In "path"}}<li><code>{{.Name}}</code> ({{.In}}){{with .Description}} {{.}}{{end}}</li>{{end}}{{end}}</ul>{{end}}
{{with request .}}<p>Request body: {{.}}</p>{{end}}
{{range $code, $r := .Responses}}{{with carries $r.Content}}<p>{{$code}}: {{.}}</p>{{end}}{{end}}
</article>{{end}}{{end}}</body></html>
`))
