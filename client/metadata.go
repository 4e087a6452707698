package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"mariposa/contract"
)

// Metadata lists a project's metadata. Secrets are masked unless revealed.
func (c *Client) Metadata(ctx context.Context, project string, reveal bool) (*contract.Metadata, error) {
	return send[contract.Metadata](ctx, c, get(pathOf(project, "metadata"), c.revealQuery(reveal)))
}

// MetadataDocument returns the metadata as YAML, byte for byte as submitted except for
// secrets, which are masked unless revealed.
func (c *Client) MetadataDocument(ctx context.Context, project string, reveal bool) ([]byte, error) {
	r := get(pathOf(project, "metadata"), c.revealQuery(reveal))
	r.accept = yaml
	return c.bytes(ctx, r)
}

// ImportMetadata replaces all metadata with a YAML document. Of the update, only
// Previous, Force and Message apply.
func (c *Client) ImportMetadata(ctx context.Context, project string, document []byte, u Update) (*contract.Changed, error) {
	q := c.organizationQuery()
	setParameter(q, "previous", u.Previous, "message", u.Message)
	setIf(q, "force", u.Force)
	return send[contract.Changed](ctx, c, request{method: http.MethodPut, path: pathOf(project, "metadata"), query: q, body: document, kind: yaml})
}

// MetadataKey returns one key. A secret is masked unless revealed.
func (c *Client) MetadataKey(ctx context.Context, project, key string, reveal bool) (*contract.MetadataKey, error) {
	return send[contract.MetadataKey](ctx, c, get(pathOf(project, "metadata", key), c.revealQuery(reveal)))
}

// KeyChange is the condition for changing a key, and a message.
type KeyChange struct {
	CAS     string // only if the key still has this value; 0: only if it is not set
	Message string // describes the version in its history
}

// SetMetadata sets one key.
func (c *Client) SetMetadata(ctx context.Context, project, key string, value contract.MetadataValue, change KeyChange) (*contract.Changed, error) {
	q := c.organizationQuery()
	setParameter(q, "cas", change.CAS, "message", change.Message)
	return send[contract.Changed](ctx, c, put(pathOf(project, "metadata", key), value).with(q))
}

// DeleteMetadata deletes one key. With a CAS, only if it has not changed since.
func (c *Client) DeleteMetadata(ctx context.Context, project, key, cas string) (*contract.Changed, error) {
	q := c.organizationQuery()
	setParameter(q, "cas", cas)
	return send[contract.Changed](ctx, c, remove(pathOf(project, "metadata", key), q))
}

// CountMetadata adds a number, which may be negative, to a numeric key. The response
// contains the new value.
func (c *Client) CountMetadata(ctx context.Context, project, key string, by int64) (*contract.Changed, error) {
	verb := "incr"
	if by < 0 {
		verb, by = "decr", -by
	}
	q := c.organizationQuery()
	q.Set("by", strconv.FormatInt(by, 10))
	return send[contract.Changed](ctx, c, request{method: http.MethodPost, path: pathOf(project, "metadata", key, verb), query: q})
}

func (c *Client) revealQuery(reveal bool) url.Values {
	q := c.organizationQuery()
	setIf(q, "reveal", reveal)
	return q
}
