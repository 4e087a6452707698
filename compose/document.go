package compose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"mariposa"
	"mariposa/manifest"
)

// document is a manifest. Its fields are in the order in which people write them.
type document struct {
	Services ordered  `json:"services"`
	Volumes  *ordered `json:"volumes,omitempty"`
	Networks *ordered `json:"networks,omitempty"`
	Metadata *ordered `json:"metadata,omitempty"`
}

// service is a service of the manifest.
type service struct {
	Image        string   `json:"image"`
	Entrypoint   []string `json:"entrypoint,omitempty"`
	Command      []string `json:"command,omitempty"`
	WorkingDir   string   `json:"working_dir,omitempty"`
	User         string   `json:"user,omitempty"`
	Environment  *ordered `json:"environment,omitempty"`
	Files        *ordered `json:"files,omitempty"`
	Tags         *ordered `json:"tags,omitempty"`
	Scale        *int     `json:"scale,omitempty"`
	Memory       any      `json:"memory,omitempty"`
	CPU          float64  `json:"cpu,omitempty"`
	Ports        []any    `json:"ports,omitempty"`
	Volumes      []string `json:"volumes,omitempty"`
	Networks     []string `json:"networks,omitempty"`
	DNS          []string `json:"dns,omitempty"`
	DNSSearch    []string `json:"dns_search,omitempty"`
	DependsOn    []string `json:"depends_on,omitempty"`
	HealthChecks []any    `json:"healthchecks,omitempty"`
	Grace        *float64 `json:"grace,omitempty"`
	Restart      string   `json:"restart,omitempty"`
	Stop         *ordered `json:"stop,omitempty"`
	Update       *ordered `json:"update,omitempty"`
}

// metadata is the declaration of a metadata key.
type metadata struct {
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
	Secret      bool   `json:"secret,omitempty"`
	Default     string `json:"default,omitempty"`
}

// ordered is a mapping with keys in an order.
type ordered []entry

type entry struct {
	key   string
	value any
}

// set adds an entry, or replaces the one of that key.
func set(o **ordered, key string, value any) {
	if *o == nil {
		*o = &ordered{}
	}
	for i, e := range **o {
		if e.key == key {
			(**o)[i].value = value
			return
		}
	}
	**o = append(**o, entry{key, value})
}

// push adds an entry whose key is new.
func push(o **ordered, key string, value any) {
	if *o == nil {
		*o = &ordered{}
	}
	**o = append(**o, entry{key, value})
}

func (o *ordered) has(key string) bool {
	if o != nil {
		for _, e := range *o {
			if e.key == key {
				return true
			}
		}
	}
	return false
}

// MarshalJSON implements json.Marshaler.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(e.key))
		b.WriteByte(':')
		b.Write(encode(e.value))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encode writes JSON that a manifest can contain: characters that manifests refuse are
// written as escapes.
func encode(value any) []byte {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // texts, numbers and lists can always be encoded
	}
	if !bytes.ContainsFunc(raw, needsEscape) {
		return raw
	}
	var b bytes.Buffer
	for _, r := range string(raw) {
		if needsEscape(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

func needsEscape(r rune) bool {
	return 0x7f <= r && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

// write returns the manifest as YAML.
func (d *document) write() []byte { return manifest.AsYAML(encode(d)) }

// refusal returns why a manifest cannot have a value for a key of a service; empty if it
// can. It asks the parser of manifests, so the two never differ.
func (t *translation) refusal(key string, value any) string {
	if why := unwritable(value); why != "" {
		return why
	}
	one := document{Metadata: t.out.Metadata}
	fields := ordered{{key, value}}
	if key != "image" {
		fields = append(fields, entry{"image", "x"})
	}
	one.Services = ordered{{"x", fields}}
	if names, ok := value.([]string); ok {
		for _, name := range names {
			switch key {
			case "volumes":
				set(&one.Volumes, mariposa.ParseMount(name).Name, ordered{})
			case "networks":
				set(&one.Networks, name, ordered{})
			}
		}
	}
	_, err := manifest.Parse(encode(&one))
	if err == nil {
		return ""
	}
	if e, ok := err.(*mariposa.Error); ok && len(e.Faults) > 0 { //nolint:errorlint // Parse returns this type
		return e.Faults[0].Message
	}
	return err.Error()
}

// unwritable returns why a text cannot be part of any manifest.
func unwritable(value any) string {
	switch v := value.(type) {
	case string:
		switch {
		case !utf8.ValidString(v):
			return "is not UTF-8"
		case strings.IndexByte(v, 0) >= 0:
			return "contains the character U+0000"
		}
	case []string:
		for _, s := range v {
			if why := unwritable(s); why != "" {
				return why
			}
		}
	case *ordered:
		for _, e := range *v {
			if why := unwritable(e.key); why != "" {
				return why
			}
			if why := unwritable(e.value); why != "" {
				return why
			}
		}
	}
	return ""
}

// bracesKey is a metadata key whose value is two opening braces: a manifest has no other
// way to write them.
const bracesKey = "open_braces"

// literal returns a text that a manifest does not interpolate.
func (t *translation) literal(text string) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	if !t.out.Metadata.has(bracesKey) {
		set(&t.out.Metadata, bracesKey, metadata{Description: "Two opening braces, which are no interpolation", Default: "{{"})
	}
	return strings.ReplaceAll(text, "{{", "{{ .meta."+bracesKey+" }}")
}

// size writes a number of bytes as manifests do.
func size(bytes int64) any {
	for i := 3; i >= 0; i-- {
		if unit := int64(1) << (10 * (i + 1)); bytes >= unit && bytes%unit == 0 {
			return strconv.FormatInt(bytes/unit, 10) + "kmgt"[i:i+1]
		}
	}
	return bytes
}
