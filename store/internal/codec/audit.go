package codec

import (
	"encoding/json"
	"time"

	"mariposa"
)

// auditBody is an entry of the audit log as stored, without its id and time: the fields
// here hide those of the entry and, being empty, are omitted.
type auditBody struct {
	ID   int `json:"id,omitempty"`
	Time int `json:"time,omitempty"`
	*mariposa.Audit
}

// Audit encodes an entry without its id and time.
func Audit(a *mariposa.Audit) ([]byte, error) { return json.Marshal(auditBody{Audit: a}) }

// DecodeAudit decodes an entry and adds its id and time.
func DecodeAudit(id int64, at time.Time, body []byte) (a mariposa.Audit, err error) {
	err = json.Unmarshal(body, &a)
	a.ID, a.Time = id, at
	return a, err
}
