-- The words of a memory are read from its text again when it is to be forgotten, so they are kept once, as postings.
-- Which model has encoded it is noted with its seat. An index of that exists where there is a model (meaning.py).
alter table memory_seat add column model text;
update memory_seat set model = (select model from memory_vector where memory_vector.seat = memory_seat.seat)
where seat in (select seat from memory_vector);
drop table if exists memory_terms;
