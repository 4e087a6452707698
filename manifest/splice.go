package manifest

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// SetService puts the definition of one service into a manifest, in place of
// the one it has or after the others. Def is a YAML or JSON mapping of a
// service's keys. All other lines of the manifest stay as they are.
func SetService(doc []byte, name string, def []byte) ([]byte, error) {
	if why := dnsLabel(name); why != "" {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the service name %s", why)
	}
	body, faults := read(def)
	if body == nil || len(faults) > 0 {
		return nil, (&checker{faults: faults}).err()
	}
	if k := kindOf(body); k != kindMap && k != kindNull {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the definition of a service must be a mapping, not %s", k)
	}
	return splice(doc, name, func(column int) string { return entryText(name, def, body, column) })
}

// RemoveService removes one service from a manifest.
func RemoveService(doc []byte, name string) ([]byte, error) {
	return splice(doc, name, func(int) string { return "" })
}

// ServiceText returns the definition of one service as a YAML document of its
// own; false if the manifest has none of that name.
func ServiceText(doc []byte, name string) ([]byte, bool) {
	s, err := findServices(doc)
	if err != nil {
		return nil, false
	}
	i := s.index(name)
	if i < 0 {
		return nil, false
	}
	return write(s.entries[i].value), true
}

// services is the mapping of services in a manifest's bytes.
type services struct {
	block   bool // it is written line by line, not in braces
	end     int  // where the lines after it begin
	entries []serviceEntry
}

// serviceEntry is a service and where the line of its name begins.
type serviceEntry struct {
	key, value *yaml.Node
	line       int
}

func findServices(doc []byte) (*services, error) {
	root, faults := read(doc)
	if root == nil || len(faults) > 0 || kindOf(root) != kindMap {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the stored manifest is invalid: submit a valid one first")
	}
	s := &services{end: len(doc)}
	f := newFinder(doc)
	found := false
	for key, value := range entriesOf(root) {
		if found {
			s.end = lineBegin(doc, f.find(key))
			break
		}
		if found = key.Value == "services"; !found {
			continue
		}
		s.block = len(value.Content) > 0 && (root.Style|value.Style)&yaml.FlowStyle == 0
		for name, def := range entriesOf(value) {
			e := serviceEntry{key: name, value: def}
			if s.block {
				e.line = lineBegin(doc, f.find(name))
			}
			s.entries = append(s.entries, e)
		}
	}
	return s, nil
}

func (s *services) index(name string) int {
	return slices.IndexFunc(s.entries, func(e serviceEntry) bool { return e.key.Value == name })
}

// splice changes one service. If its lines cannot simply be replaced, the whole manifest
// is rewritten without its comments.
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
		column := s.entries[0].key.Column - 1
		from, to := s.end, s.end
		if i >= 0 {
			from = s.entries[i].line
			if i+1 < len(s.entries) {
				to = s.entries[i+1].line
			}
		}
		if next := joinTexts(doc[:from], text(column), doc[to:]); readsAsBefore(doc, next, name) {
			return next, nil
		}
	}
	return rewritten(doc, name, text)
}

// joinTexts inserts lines between others.
func joinTexts(before []byte, text string, after []byte) []byte {
	var out bytes.Buffer
	out.Write(before)
	if len(before) > 0 && before[len(before)-1] != '\n' {
		out.WriteByte('\n')
	}
	out.WriteString(text)
	out.Write(after)
	return out.Bytes()
}

// readsAsBefore reports whether a changed manifest can be read and differs from
// the old one only in one service.
func readsAsBefore(was, is []byte, name string) bool {
	a, _ := read(was)
	b, faults := read(is)
	if a == nil || b == nil || len(faults) > 0 {
		return false
	}
	return bytes.Equal(write(withoutKey(a, name)), write(withoutKey(b, name)))
}

// withoutKey returns a manifest's tree without one service.
func withoutKey(root *yaml.Node, name string) *yaml.Node {
	top := *root
	top.Content = nil
	for key, value := range entriesOf(root) {
		if key.Value == "services" {
			all := value
			value = &yaml.Node{Kind: yaml.MappingNode}
			for svc, def := range entriesOf(all) {
				if svc.Value != name {
					value.Content = append(value.Content, svc, def)
				}
			}
		}
		top.Content = append(top.Content, key, value)
	}
	return &top
}

// rewritten rewrites the whole manifest with one service changed.
func rewritten(doc []byte, name string, text func(int) string) ([]byte, error) {
	root, _ := read(doc)
	rest := withoutKey(root, name)
	if block := text(0); block != "" {
		added, faults := read([]byte(block))
		if added == nil || len(faults) > 0 {
			return nil, (&checker{faults: faults}).err()
		}
		found := false
		for key, value := range entriesOf(rest) {
			if key.Value == "services" {
				value.Content = append(value.Content, added.Content...)
				found = true
			}
		}
		if !found {
			rest.Content = append(rest.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "services"}, added)
		}
	}
	return write(rest), nil
}

// entryText writes one service at a column.
func entryText(name string, def []byte, body *yaml.Node, column int) string {
	pad := strings.Repeat(" ", column)
	text := strings.TrimRight(string(def), " \t\r\n")
	if len(body.Content) == 0 {
		return pad + name + ": {}\n"
	}
	if body.Style&yaml.FlowStyle != 0 || strings.Contains(text, "\t") || strings.HasPrefix(text, "---") {
		text = strings.TrimRight(string(write(body)), "\n")
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
