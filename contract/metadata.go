package contract

import (
	"encoding/json"
	"time"
)

// MetadataKey is one key of a project's metadata, with its value and declaration.
type MetadataKey struct {
	Key         string     `json:"key"`
	Value       string     `json:"value" doc:"masked if it is a secret"`
	Set         bool       `json:"set"`
	Secret      bool       `json:"secret"`
	Protected   bool       `json:"protected,omitempty" doc:"only approved versions can use it, and only operators can change it"`
	CAS         string     `json:"cas,omitempty" doc:"changes with every change of this key; pass it as ?cas= to reject the change if the key was modified in the meantime"`
	Changed     *time.Time `json:"changed,omitempty"`
	Declared    bool       `json:"declared" doc:"the manifest declares the key"`
	Required    bool       `json:"required"`
	Default     string     `json:"default,omitempty"`
	Description string     `json:"description,omitempty"`
	Type        string     `json:"type,omitempty" doc:"string, integer or boolean, if the manifest declares the key"`
	Pattern     string     `json:"pattern,omitempty" doc:"a regular expression (RE2) that the whole value must match"`
	Choices     []string   `json:"choices,omitempty" doc:"the allowed values"`
	Generate    int        `json:"generate,omitempty" doc:"length of the value that is generated if none is set"`
	UsedBy      []string   `json:"used_by" doc:"services that use the key, at provisioning or live"`
}

// MetadataRule is what a manifest declares about a metadata key.
type MetadataRule struct {
	Key         string   `json:"key"`
	Description string   `json:"description,omitempty"`
	Required    bool     `json:"required"`
	Secret      bool     `json:"secret"`
	Type        string   `json:"type" doc:"string, integer or boolean"`
	Pattern     string   `json:"pattern,omitempty" doc:"a regular expression (RE2) that the whole value must match"`
	Choices     []string `json:"choices,omitempty" doc:"the allowed values"`
	Default     *string  `json:"default,omitempty" doc:"used if no value is set"`
	Generate    int      `json:"generate,omitempty" doc:"length of the value that is generated if none is set"`
}

// Metadata is a project's metadata as a list.
type Metadata struct {
	Version string        `json:"version"`
	Number  int           `json:"number"`
	Keys    []MetadataKey `json:"keys"`
	Missing []string      `json:"missing" doc:"required keys without a value"`
}

// MetadataValue sets one value.
type MetadataValue struct {
	Value  json.RawMessage `json:"value" doc:"a string, number or boolean"`
	Secret *bool           `json:"secret,omitempty" doc:"default: unchanged, or as declared in the manifest"`
}

// Tag is a name for a version.
type Tag struct {
	Tag       string `json:"tag"`
	Version   string `json:"version"`
	Number    int    `json:"number"`
	Automatic bool   `json:"automatic" doc:"set by Mariposa; cannot be deleted"`
}

// Tags is a list of tags.
type Tags struct {
	Tags []Tag `json:"tags"`
}

// NewTag requests a tag.
type NewTag struct {
	Tag     string `json:"tag"`
	Version string `json:"version" doc:"a version hash (or at least its first 7 characters), a version number, or another tag"`
}

// Diff is the difference between two versions.
type Diff struct {
	From     Version       `json:"from"`
	To       Version       `json:"to"`
	Services []ServiceDiff `json:"services"`
	Metadata []ValueDiff   `json:"metadata" doc:"secrets are masked"`
}

// ServiceDiff is the difference in one service.
type ServiceDiff struct {
	Service string      `json:"service"`
	Change  string      `json:"change" doc:"create, delete, replace, update or scale"`
	Fields  []FieldDiff `json:"fields"`
}

// FieldDiff is one field that differs.
type FieldDiff struct {
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// ValueDiff is one metadata key that differs.
type ValueDiff struct {
	Key    string `json:"key"`
	Change string `json:"change" doc:"added, removed or changed"`
	Secret bool   `json:"secret"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Copy requests a copy of a project.
type Copy struct {
	Name         string   `json:"name"`
	Organization string   `json:"organization,omitempty" doc:"default: the same organization"`
	Metadata     []string `json:"metadata,omitempty" doc:"the metadata keys to copy; no other values are copied"`
}

// Move requests that a project move to another organization.
type Move struct {
	Organization string `json:"organization"`
}
