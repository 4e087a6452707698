package postgres_test

import (
	"testing"

	"mariposa/store/postgres"
	"mariposa/store/postgres/pgtest"
	"mariposa/store/storetest"
)

func TestAWriteAllocatesLittle(t *testing.T) {
	s, err := postgres.Open(t.Context(), pgtest.Start(t), postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	storetest.GuardAllocations(t, s, 60)
}
