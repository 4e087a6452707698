package manifest

import (
	"bytes"
	"strings"

	"mariposa"
	"mariposa/manifest/document"
)

// SetService puts the definition of one service into a manifest, in place of the
// one it has or behind the others. Def is a YAML or JSON mapping of a service's
// keys. All other lines of the manifest stay as they are.
func SetService(doc []byte, name string, def []byte) ([]byte, error) {
	if why := dnsLabel(name); why != "" {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the name of the service %s", why)
	}
	body, faults := document.Read(def)
	if body == nil || len(faults) > 0 {
		return nil, (&checker{faults: faults}).err()
	}
	if body.Kind != document.Map && body.Kind != document.Null {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the definition of a service is a mapping of its keys, not %s", body.Kind)
	}
	return splice(doc, name, func(column int) string { return entryText(name, def, body, column) })
}

// RemoveService takes one service out of a manifest.
func RemoveService(doc []byte, name string) ([]byte, error) {
	return splice(doc, name, func(int) string { return "" })
}

// ServiceText is the definition of one service as a YAML document of its own;
// false when the manifest has none of that name.
func ServiceText(doc []byte, name string) ([]byte, bool) {
	s, err := findServices(doc)
	if err != nil {
		return nil, false
	}
	i := s.index(name)
	if i < 0 {
		return nil, false
	}
	return document.Write(s.entries[i].Value), true
}

// services is the mapping of services in a manifest's bytes.
type services struct {
	doc     []byte
	block   bool // it is written line by line, not in braces
	at      int  // where its key begins
	end     int  // where the lines behind it begin
	entries []document.Entry
}

func findServices(doc []byte) (*services, error) {
	root, faults := document.Read(doc)
	if root == nil || len(faults) > 0 || root.Kind != document.Map {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the manifest cannot be read")
	}
	s := &services{doc: doc, end: len(doc)}
	for i, e := range root.Entries {
		if e.Key != "services" {
			continue
		}
		s.at, s.entries = e.At, e.Value.Entries
		s.block = doc[0] != '{' && e.Value.Kind == document.Map && len(s.entries) > 0 && s.entries[0].Line > e.Line
		if i+1 < len(root.Entries) {
			s.end = lineBegin(doc, root.Entries[i+1].At)
		}
	}
	return s, nil
}

func (s *services) index(name string) int {
	for i, e := range s.entries {
		if e.Key == name {
			return i
		}
	}
	return -1
}

// splice changes one service. Where lines cannot simply be exchanged, the whole
// manifest is written anew, without its comments.
func splice(doc []byte, name string, text func(column int) string) ([]byte, error) {
	s, err := findServices(doc)
	if err != nil {
		return nil, err
	}
	i := s.index(name)
	if i < 0 && text(0) == "" {
		return nil, mariposa.Errorf(mariposa.ResourceNotFound, "the manifest has no service %q", name)
	}
	if s.block {
		column := s.entries[0].At - lineBegin(doc, s.entries[0].At)
		from, to := s.end, s.end
		if i >= 0 {
			from = lineBegin(doc, s.entries[i].At)
			if i+1 < len(s.entries) {
				to = lineBegin(doc, s.entries[i+1].At)
			}
		}
		if next := joined(doc[:from], text(column), doc[to:]); reads(doc, next, name) {
			return next, nil
		}
	}
	return rewritten(doc, name, text)
}

// joined puts lines between others.
func joined(before []byte, text string, after []byte) []byte {
	var out bytes.Buffer
	out.Write(before)
	if len(before) > 0 && before[len(before)-1] != '\n' {
		out.WriteByte('\n')
	}
	out.WriteString(text)
	out.Write(after)
	return out.Bytes()
}

// reads reports whether a changed manifest can be read, and differs from the old one
// in nothing but one service.
func reads(was, is []byte, name string) bool {
	a, _ := document.Read(was)
	b, faults := document.Read(is)
	if a == nil || b == nil || len(faults) > 0 {
		return false
	}
	return bytes.Equal(document.Write(without(a, name)), document.Write(without(b, name)))
}

// without is a manifest's tree less one service.
func without(root *document.Node, name string) *document.Node {
	top := *root
	top.Entries = nil
	for _, e := range root.Entries {
		if e.Key == "services" {
			value := *e.Value
			value.Kind, value.Entries = document.Map, nil
			for _, svc := range e.Value.Entries {
				if svc.Key != name {
					value.Entries = append(value.Entries, svc)
				}
			}
			e.Value = &value
		}
		top.Entries = append(top.Entries, e)
	}
	return &top
}

// rewritten writes the whole manifest anew with one service changed.
func rewritten(doc []byte, name string, text func(int) string) ([]byte, error) {
	root, _ := document.Read(doc)
	rest := without(root, name)
	if block := text(0); block != "" {
		added, faults := document.Read([]byte(block))
		if added == nil || len(faults) > 0 {
			return nil, (&checker{faults: faults}).err()
		}
		found := false
		for i := range rest.Entries {
			if rest.Entries[i].Key == "services" {
				rest.Entries[i].Value.Entries = append(rest.Entries[i].Value.Entries, added.Entries...)
				found = true
			}
		}
		if !found {
			rest.Entries = append(rest.Entries, document.Entry{Key: "services", Value: added})
		}
	}
	return document.Write(rest), nil
}

// entryText writes one service at a column.
func entryText(name string, def []byte, body *document.Node, column int) string {
	pad := strings.Repeat(" ", column)
	text := strings.TrimRight(string(def), " \t\r\n")
	if body.Kind == document.Null || len(body.Entries) == 0 {
		return pad + name + ": {}\n"
	}
	if strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") || strings.Contains(text, "\t") || strings.HasPrefix(text, "---") {
		text = strings.TrimRight(string(document.Write(body)), "\n")
	}
	var b strings.Builder
	b.WriteString(pad + name + ":\n")
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line != "" {
			line = pad + "  " + line
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
